package main

import (
	"sync"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ownUsers remembers the sandboxes of pods with a user namespace: a container that cannot be
// made in one, or not started, counts as the pod's failure, once, as the kubelet counts
// (kubelet_started_user_namespaced_pods_errors_total: "failures in user namespace creation
// could happen at any point").
type ownUsers struct {
	mu         sync.Mutex
	sandboxes  map[string]bool   // none of whose containers has failed yet
	containers map[string]string // made, with the sandbox, and not started yet
}

func newOwnUsers() *ownUsers {
	return &ownUsers{sandboxes: map[string]bool{}, containers: map[string]string{}}
}

// ofUsers tells whether a sandbox is to have a user namespace of its own.
func ofUsers(config *criv1.PodSandboxConfig) bool {
	own := config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
	return own != nil && own.Mode == criv1.NamespaceMode_POD
}

func (u *ownUsers) began(sandbox string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.sandboxes[sandbox] = true
}

func (u *ownUsers) removed(sandbox string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.sandboxes, sandbox)
}

// made takes note of a container, and tells whether its failure is the first of its pod.
func (u *ownUsers) made(sandbox, container string, err error) (failed bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.sandboxes[sandbox] {
		return false
	}
	if err != nil {
		delete(u.sandboxes, sandbox)
		return true
	}
	u.containers[container] = sandbox
	return false
}

// started is made for the container's start.
func (u *ownUsers) started(container string, err error) (failed bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	sandbox, ok := u.containers[container]
	delete(u.containers, container)
	if !ok || err == nil || !u.sandboxes[sandbox] {
		return false
	}
	delete(u.sandboxes, sandbox)
	return true
}
