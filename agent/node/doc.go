// Package node is the writer of this machine's Node object and Lease: what the
// machine is and has (Facts), what the Node must then say (Build, pure), and when
// the API is told (Manager).
package node
