// Package ttlafterfinished deletes Jobs a set time after they have finished
// (KEP-592).
package ttlafterfinished
