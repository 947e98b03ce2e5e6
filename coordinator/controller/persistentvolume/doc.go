// Package persistentvolume binds claims to volumes, asks provisioners for new
// ones, and says of each volume and claim what state it is in (PV-3..PV-44).
package persistentvolume
