// Package node is the writer of this machine's Node object and Lease: what the
// Node must say of what the machine is and has (Build, pure), and when the API is
// told (Manager).
package node
