package bootstrap

import (
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/catalog"
)

// Preload makes the tables that Load needs beside the manifest, in the order in
// which it needs them. Run beside what precedes Load, it takes time off the start
// of a box; without it, Load makes them itself. Safe for concurrent use.
func Preload() {
	schema.Preload()
	catalog.Load()
}
