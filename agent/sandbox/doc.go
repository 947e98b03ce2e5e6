// Package sandbox keeps what the containers of one pod share: namespaces that
// belong to no process, the pod's files (resolv.conf, hostname, hosts,
// /dev/shm) and a small record that outlives the agent.
//
// A PID namespace alone needs a process: where containers share one, it is
// shoal-pause (agent/pause), started by pause.go.
//
//	Run -> Ready -> Stop -> NotReady -> Remove -> gone   (a reboot, Outdate: Ready -> NotReady)
package sandbox
