// Package persistentvolume binds claims to volumes, asks provisioners for new
// ones, empties those to be recycled, and says of each volume and claim what state it
// is in (PV-3..PV-44).
//
// A claim that binds at once, for the driver that ships with Shoal, is given to a
// node besides, since nodes make these volumes themselves (package locality): to the
// one with the most room, or to the one that has what it is to be a copy of. A node
// that cannot make it takes its name off again.
package persistentvolume
