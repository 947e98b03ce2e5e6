// Package oci turns a container's CRI configuration and image into an OCI
// runtime specification (a pure function of its input and of the facts about
// the host), and knows how to call an OCI runtime such as runc or crun.
package oci
