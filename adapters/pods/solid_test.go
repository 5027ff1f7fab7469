package pods

import (
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/contract"
)

// Package solid runs the suite with class local, and with the pod server that this class is for. The two classes differ in how they
// connect.
func TestContractExternal(t *testing.T) {
	contract.Pods(t, func(t testing.TB) adapters.Pods { return mustSolid(t, NewExternal, emptyPod(t)) })
}

func TestContractOff(t *testing.T) {
	contract.Pods(t, func(testing.TB) adapters.Pods { return adapters.WrapPods(nil, nil) })
}
