// Package launch translates a Pod into the messages of the container runtime
// interface (CRI). It is pure: the worker (package pod, facts.go) tells it
// facts, and makes the files that it asks for.
//
//	Facts ────────> Container: contributors, in order ──> ContainerConfig, Files
//	SandboxFacts ─> Sandbox:   contributors, in order ──> PodSandboxConfig
//
// Each contributor adds its part to the draft and leaves what others added as
// it is. What makes a container (containerContributors in launch.go):
//
//	identity     identity.go     its name and attempt, image, log, labels, annotations
//	security     security.go     user and groups, capabilities, namespaces, profiles; refuses root
//	plugins      devices.go      what comes with devices that device plugins have allocated
//	environment  environment.go  env over envFrom over the Services' variables
//	process      process.go      command and arguments, expanded by the environment; streams, stop signal
//	volumes      volumes.go      mounts of volumes; paths may be made of the environment
//	devices      devices.go      volumes that are devices
//	claims       devices.go      devices that drivers have prepared for resource claims
//	files        files.go        mounts of the agent's own: /etc/hosts, the termination message file
//	resources    resources.go    CPU, memory, huge pages, OOM score
//
// What makes a sandbox (sandboxContributors):
//
//	identity   identity.go   the pod's name and attempt, labels, annotations, directory of logs
//	network    network.go    resolver, host name, host ports
//	security   security.go   user and groups, namespaces, profiles
//	sysctls    sysctls.go    kernel parameters of its namespaces
//	resources  resources.go  the pod's cgroup and its limits
//
// To give containers something more, put what is known of it into Facts (filled by
// package pod), write a function
//
//	func something(c *container) error {
//		for _, d := range c.Something {
//			c.config.Devices = append(c.config.Devices, &criv1.Device{...})
//		}
//		return nil
//	}
//
// and add its line to containerContributors and above: before process, if it
// brings variables that commands may use, else anywhere. Mounts are sorted at
// the end, so that none hides another. A scenario in testdata shows what a pod
// that asks for it becomes.
package launch
