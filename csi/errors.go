package csi

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Final tells whether a call that failed is over. Otherwise the driver may still
// be at work, and may have done all or a part of it.
func Final(err error) bool {
	st, ok := status.FromError(err)
	if !ok {
		return false // not the driver's answer: what an earlier call did is not known
	}
	switch st.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return false
	}
	return true
}

// Infeasible tells whether an expansion can never succeed as it was asked for.
func Infeasible(err error) bool {
	switch code(err) {
	case codes.InvalidArgument, codes.OutOfRange, codes.NotFound:
		return true
	}
	return false
}

// Full tells whether the driver has no room for a volume.
func Full(err error) bool { return code(err) == codes.ResourceExhausted }

// InUse tells whether an expansion failed because the volume is in use.
func InUse(err error) bool { return code(err) == codes.FailedPrecondition }

// code is that of a driver's answer; Unknown for other errors.
func code(err error) codes.Code {
	st, ok := status.FromError(err)
	if !ok {
		return codes.Unknown
	}
	return st.Code()
}

// maxMessage bounds what a driver says of an error, which goes into events.
const maxMessage = 1 << 10

// bounded shortens the message of an error.
func bounded(err error) error {
	st, ok := status.FromError(err)
	if err == nil || !ok || len(st.Message()) <= maxMessage {
		return err
	}
	return status.Error(st.Code(), st.Message()[:maxMessage]+"...")
}
