package process

import "bytes"

// Output keeps the beginning of what a program says. Its buffer is not embedded: io.Copy
// would fill that by its ReadFrom, past the limit.
type Output struct {
	Limit int // bytes that are kept; the rest is taken and dropped

	kept bytes.Buffer
	over bool
}

// Write implements io.Writer; it never fails.
func (o *Output) Write(b []byte) (int, error) {
	room := max(o.Limit-o.kept.Len(), 0)
	o.over = o.over || len(b) > room
	o.kept.Write(b[:min(len(b), room)])
	return len(b), nil
}

// Bytes are those that were kept, Over tells whether there were more.
func (o *Output) Bytes() []byte { return o.kept.Bytes() }

// Over tells whether something was dropped.
func (o *Output) Over() bool { return o.over }

// String is Bytes as text.
func (o *Output) String() string { return o.kept.String() }
