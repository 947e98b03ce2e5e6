// Package plugin gives the containers of this node the devices of device plugins
// (v1beta1): programs of others that advertise devices under the name of an extended
// resource, as vendor.example/dev.
//
//	plugin ─ Register (kubelet.sock, or package plugins) ─> GetDevicePluginOptions ─> ListAndWatch
//	         each list ─> devices with their health ─> Node: capacity, allocatable ─> pods' status
//	         the stream ends ─> all devices unhealthy; five minutes later there are none
//	pod comes:  devices for each container that asks ─ GetPreferredAllocation, Allocate
//	            ─> record, on the disk ─> sandbox, containers
//	container:  PreStartContainer ─> variables, mounts, device nodes, annotations and CDI names
//	pod goes:   its record is deleted, its devices are free
//
// Who has a device is what the records say, nothing else: a record is on the disk before
// a container of the pod starts, and is there until all of them have ended. So neither an
// agent that is killed nor a machine that starts again gives a device twice. A container
// that is started again has the devices, and the answer of Allocate, that it had.
//
// When the agent starts it removes the sockets in the directory and makes its own anew,
// as the kubelet; plugins watch for that and register again. Until they have, pods that
// need them wait, for five minutes at most (comeback): after a start of the agent those
// that are new, after one of the machine those too whose devices are recorded, which are
// allocated to them again. What runs is not touched. After that, and at any other time,
// a pod for which there are not enough healthy devices is rejected as by the kubelet.
//
// Calls are bounded in time, answers in size. One pod at a time chooses among the devices
// of a resource, and nothing else waits for a plugin: one that hangs holds up its own pods.
package plugin
