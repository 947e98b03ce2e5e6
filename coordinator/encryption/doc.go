// Package encryption keeps the file that says how the store's values are
// encrypted, upstream's EncryptionConfiguration, and rotates the keys in it:
//
//	[A]     the only key, or the newest of all
//	[A B]   B is added: every reader knows it before anything is written with it
//	[B A]   B is first: new values are written with it
//	[B A]   all values are rewritten, by the API
//	[B]     A is dropped, when the store has no value under it any more
//
// Names of keys tell when they were made, so that the file alone says how far a
// rotation has come: one that was interrupted goes on where it was. Package
// store reads the file and uses the keys.
package encryption
