package adapters

import "context"

// off is the adapter of a slot without a real one: the manifest turns the slot off, or its adapter
// is out of service. It has none of the slot's methods, because the guard of its port refuses every
// call. For events, see Call.Idle.
type off struct{ slot Slot }

func (o off) Slot() Slot                       { return o.slot }
func (o off) Impl() string                     { return string(ClassOff) }
func (o off) Class() Class                     { return ClassOff }
func (o off) Enabled() bool                    { return false }
func (o off) Capabilities() []string           { return []string{} }
func (o off) Connect(context.Context) error    { return nil }
func (o off) Disconnect(context.Context) error { return nil }
func (o off) Health(context.Context) Health    { return Health{State: StateOff} }
func (o off) ContractVersion() string {
	c, _ := ContractOf(o.slot)
	return c.Version
}
