package main

import (
	"errors"
	"fmt"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

// TestHostIPOfAnyText: the API takes any text for a host port's address. A pod with
// one that is no address does not come, and goes.
func TestHostIPOfAnyText(t *testing.T) {
	args := &skel.CmdArgs{ContainerID: "c", IfName: "eth0", StdinData: fmt.Appendf(nil, `{
		"cniVersion": "1.1.0", "name": "pods", "type": "shoal-cni",
		"podCIDRs": ["10.244.7.0/24"], "stateDir": %q,
		"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "hostIP": "everywhere"}]}
	}`, t.TempDir())}
	var e *types.Error
	if err := add(args); !errors.As(err, &e) || e.Code != types.ErrInvalidNetworkConfig {
		t.Errorf("ADD answers %v", err)
	}
	if err := del(args); err != nil {
		t.Errorf("DEL answers %v", err)
	}
}
