package process

import (
	"errors"
	"fmt"
	"syscall"
)

// Advise adds to an error that ends a daemon what to do about it, where the
// machine is the reason.
func Advise(err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("%w: the disk is full, free some space", err)
	}
	return err
}
