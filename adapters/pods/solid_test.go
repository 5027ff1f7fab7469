package pods

import (
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/contract"
)

func TestContractLocal(t *testing.T) {
	contract.Pods(t, func(t testing.TB) adapters.Pods { return mustSolid(t, NewLocal, emptyPod(t)) })
}

func TestContractExternal(t *testing.T) {
	contract.Pods(t, func(t testing.TB) adapters.Pods { return mustSolid(t, NewExternal, emptyPod(t)) })
}

func TestContractOff(t *testing.T) {
	contract.Pods(t, func(testing.TB) adapters.Pods { return adapters.WrapPods(nil, nil) })
}
