// Package checkpoint keeps records in a directory so that each is whole after a
// crash: one file a key, replaced by rename, checked when it is read. Records
// are sealed with a key that lies elsewhere, so that a stolen disk, a backup or
// a copy of the directory tells nothing of what pods were given. The package
// knows nothing of what the records mean.
package checkpoint
