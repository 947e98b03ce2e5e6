package process

import "golang.org/x/sys/unix"

// SetUmask has files get the modes that the code says, but for write permission of others,
// as from a service manager. Whoever starts a program by hand has another umask(2) perhaps:
// with 077 no user but root could read what is in images, with 000 anybody could write to
// what programs of the distribution make.
func SetUmask() { unix.Umask(0o022) }
