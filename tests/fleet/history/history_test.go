package history

import (
	"testing"
	"time"
)

func TestLinearizable(t *testing.T) {
	at := func(n int) time.Time { return time.Unix(int64(n), 0) }
	op := func(kind, begin, end, value int) Op {
		return Op{Kind: kind, Client: begin % 3, Begin: at(begin), End: at(end), Value: value}
	}
	swap := func(begin, end, old, value int, refused bool) Op {
		o := op(Swap, begin, end, value)
		o.Old, o.Refused = old, refused
		return o
	}
	unknown := func(o Op) Op { o.Unknown = true; return o }
	for _, c := range []struct {
		name string
		ops  []Op
		want bool
	}{
		{"nothing", nil, true},
		{"what was written is read", []Op{op(Read, 1, 2, 0), op(Write, 3, 4, 7), op(Read, 5, 6, 7)}, true},
		{"an acknowledged write is lost", []Op{op(Write, 1, 2, 7), op(Read, 3, 4, 0)}, false},
		{"an old value is read after a new one", []Op{
			op(Write, 1, 2, 7), op(Write, 3, 9, 8), op(Read, 4, 5, 8), op(Read, 6, 7, 7)}, false},
		{"during a write both are right", []Op{op(Write, 1, 9, 7), op(Read, 2, 3, 0), op(Read, 4, 5, 7)}, true},
		{"a value that nobody wrote", []Op{op(Read, 1, 2, 5)}, false},
		{"a write without an answer was not made", []Op{
			unknown(op(Write, 1, 2, 7)), op(Read, 3, 4, 0), op(Read, 5, 6, 0)}, true},
		{"it takes effect late", []Op{
			unknown(op(Write, 1, 2, 7)), op(Read, 3, 4, 0), op(Read, 5, 6, 7)}, true},
		{"but not twice", []Op{
			unknown(op(Write, 1, 2, 7)), op(Read, 3, 4, 7), op(Write, 5, 6, 8), op(Read, 7, 8, 7)}, false},
		{"one of two swaps of the same value", []Op{
			swap(1, 4, 0, 7, false), swap(2, 5, 0, 8, true), op(Read, 6, 7, 7)}, true},
		{"both of them", []Op{swap(1, 4, 0, 7, false), swap(2, 5, 0, 8, false)}, false},
		{"a swap is refused without a reason", []Op{swap(1, 2, 0, 7, true)}, false},
		{"a swap without an answer", []Op{
			unknown(swap(1, 2, 0, 7, false)), op(Read, 3, 4, 7), swap(5, 6, 0, 8, true)}, true},
	} {
		var r Register
		for _, o := range c.ops {
			r.Note(o)
		}
		if got, known := r.Linearizable(time.Minute); got != c.want || !known {
			t.Errorf("%s: %v (known: %v), want %v", c.name, got, known, c.want)
		}
	}
}
