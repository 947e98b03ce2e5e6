// Package checkpoint keeps records in a directory so that each is whole after a
// crash: one file a key, replaced by rename, checked by a sum when it is read.
// It knows nothing of what the records mean.
package checkpoint
