package bootstrap

import (
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/catalog"
)

// Preload makes the tables that Load needs besides the manifest, in the order in which Load needs
// them. If it runs concurrently with the work before Load, the box starts faster. Without Preload,
// Load makes the tables itself. It is safe for concurrent use.
func Preload() {
	schema.Preload()
	catalog.Load()
}
