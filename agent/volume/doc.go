// Package volume makes the volumes of a pod on the host: directories, tmpfs
// mounts and projections of API objects that follow their changes. It knows
// volumes, never containers' states.
package volume
