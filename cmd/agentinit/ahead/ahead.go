// Package ahead begins with what every boot needs while the rest of the program is
// still being initialised: metrics, tracing and servers come after it, and a machine
// with two processors does both at once.
//
// It must import nothing but bootstrap, which by the order of the language
// specification puts it before whatever sorts behind that, and do nothing whose
// result the start of a box depends on.
package ahead

import "github.com/dreamlab-ai/agentinit/bootstrap"

func init() { go bootstrap.Preload() }
