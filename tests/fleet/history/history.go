package history

import (
	"math"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// What is done with a register.
const (
	Read  = iota // Value is what was read
	Write        // Value is written, whatever there was
	Swap         // Value is written if there was Old
)

// Op is one operation of a client. Values are unique: no two operations write the same.
type Op struct {
	Kind       int
	Client     int
	Value, Old int
	// Begin and End are when it was asked and answered.
	Begin, End time.Time
	// Refused: a swap that was refused as there was another value than Old.
	Refused bool
	// Unknown: no answer, or one that does not tell. It may have taken effect, may do so
	// later, or never will. A read that failed is no operation and is not noted.
	Unknown bool
}

// Register notes the operations on one register, which holds 0 at first. It may be used
// by several clients at the same time.
type Register struct {
	mu  sync.Mutex
	ops []porcupine.Operation
}

// Note notes an operation that is over.
func (r *Register) Note(o Op) {
	end := o.End.UnixNano()
	if o.Unknown {
		end = math.MaxInt64
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops = append(r.ops, porcupine.Operation{
		ClientId: o.Client, Input: o, Call: o.Begin.UnixNano(), Output: o, Return: end})
}

// Len is the number of operations.
func (r *Register) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.ops)
}

// Linearizable tells whether an order of the operations explains all answers, each
// between its beginning and its end; known is false when within the limit neither such
// an order was found nor that there is none.
func (r *Register) Linearizable(limit time.Duration) (yes, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	result := porcupine.CheckOperationsTimeout(model, r.ops, limit)
	return result == porcupine.Ok, result != porcupine.Unknown
}

var model = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{0} },
	Step: func(state, input, _ any) []any {
		o := input.(Op)
		switch {
		case o.Kind == Read:
			if state != o.Value {
				return nil
			}
			return []any{state}
		case o.Kind == Swap && o.Refused:
			if state == o.Old {
				return nil
			}
			return []any{state}
		case o.Unknown: // with effect where it could have one, or without
			if o.Kind == Swap && state != o.Old {
				return []any{state}
			}
			return []any{state, o.Value}
		case o.Kind == Swap && state != o.Old:
			return nil
		}
		return []any{o.Value}
	},
	Equal: func(a, b any) bool { return a == b },
}).ToModel()
