package framework

import "strings"

// Code tells the outcome of a plugin's call; names and meaning are those of
// the upstream scheduling framework.
type Code int8

const (
	// Success lets the pod pass. A nil Status means the same.
	Success Code = iota
	// Error is an unexpected failure; the pod is retried with back-off.
	Error
	// Unschedulable refuses the pod; removing other pods could help.
	Unschedulable
	// UnschedulableAndUnresolvable refuses the pod; preemption cannot help.
	UnschedulableAndUnresolvable
	// Wait is returned by Permit plugins only.
	Wait
	// Skip takes the plugin out of the rest of this pod's cycle.
	Skip
	// Pending refuses the pod until something outside reports; it is retried
	// without back-off.
	Pending
)

var codeNames = [...]string{
	"Success",
	"Error",
	"Unschedulable",
	"UnschedulableAndUnresolvable",
	"Wait",
	"Skip",
	"Pending",
}

// String is the code's name in metrics.
func (c Code) String() string { return codeNames[c] }

// Status is the verdict of a plugin. It is immutable once returned, so that one
// value can stand for thousands of nodes.
type Status struct {
	Code    Code
	Reasons []string
	Err     error
	Plugin  string // set by the framework
}

// NewStatus makes a verdict with its reasons.
func NewStatus(c Code, reasons ...string) *Status { return &Status{Code: c, Reasons: reasons} }

// AsStatus wraps an unexpected error.
func AsStatus(err error) *Status {
	if err == nil {
		return nil
	}
	return &Status{Code: Error, Err: err}
}

// Is reports whether the verdict has the code; nil is Success.
func (s *Status) Is(c Code) bool { return s.code() == c }

// OK reports success.
func (s *Status) OK() bool { return s == nil || s.Code == Success }

// Rejected reports an expected refusal, as opposed to an error.
func (s *Status) Rejected() bool {
	c := s.code()
	return c == Unschedulable || c == UnschedulableAndUnresolvable || c == Pending
}

// Message joins the reasons.
func (s *Status) Message() string {
	if s == nil {
		return ""
	}
	if s.Err != nil {
		return strings.Join(append([]string{s.Err.Error()}, s.Reasons...), ", ")
	}
	return strings.Join(s.Reasons, ", ")
}

// By returns the verdict marked with the plugin that gave it.
func (s *Status) By(plugin string) *Status {
	if s == nil || s.Plugin == plugin {
		return s
	}
	c := *s
	c.Plugin = plugin
	return &c
}

// CodeName is the name of the verdict's code; nil is Success.
func (s *Status) CodeName() string { return s.code().String() }

func (s *Status) code() Code {
	if s == nil {
		return Success
	}
	return s.Code
}
