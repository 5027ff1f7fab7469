// Package ahead starts work that every boot needs while the rest of the binary is still being
// initialised. Metrics, tracing and servers are initialised after it, so a machine with two
// processors does both at once.
//
// It must import only bootstrap: by the language specification's order, Go then initialises it
// before packages whose paths sort later. It must do nothing that the start of a box depends on.
package ahead

import "github.com/dreamlab-ai/agentinit/bootstrap"

func init() { go bootstrap.Preload() }
