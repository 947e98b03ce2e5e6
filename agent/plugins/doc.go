// Package plugins finds the programs that extend a node: CSI drivers, device
// plugins, drivers of dynamic resources. Each makes a socket in the kubelet's
// directory plugins_registry, or in one below it, and says there in the words of
// the kubelet's registration (v1) what it is and at which other socket it serves.
//
//	socket appears ─> GetInfo ─> handler of its type: Register ─> Notify(registered)
//	                     │                │ error
//	                     │                └─> Notify(error) ─┐
//	                     └ no answer ────────────────────────┴─> pause, again
//	socket goes, or another is made in its place ─> Deregister
//
// The directory is followed by inotify, never polled. Each socket has a goroutine
// of its own, so that one that is not answered holds up no other; those of one
// name wait for each other. When a plugin goes, those that were refused try again
// at once: often the same plugin has moved to another socket.
//
// When the agent ends plugins stay registered: the next one finds their sockets.
// Symbolic links, and names that begin with a dot, are left alone.
package plugins
