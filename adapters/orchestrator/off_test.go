package orchestrator

import (
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/contract"
)

func TestContractOff(t *testing.T) {
	contract.Orchestrator(t, "", func(testing.TB) adapters.Orchestrator {
		return adapters.WrapOrchestrator(nil, nil)
	})
}
