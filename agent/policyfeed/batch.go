package policyfeed

import "encoding/json"

// BatchObjects is the most objects in a line of a Batch.
const BatchObjects = 256

// batchBytes is what they may have together: far below what a Reader takes, also with one
// that is as large as the store allows.
const batchBytes = 4 << 20

// Batch divides objects among lines.
type Batch struct {
	// Lines count together: all but the last have More.
	Lines []*Update

	objects, bytes int
}

// NewBatch begins with a line that has what it is given, and no objects.
func NewBatch(first Update) *Batch { return &Batch{Lines: []*Update{&first}} }

// Line is where an object goes.
func (b *Batch) Line(object any) *Update {
	size := 0
	if data, err := json.Marshal(object); err == nil { // else it cannot be told anyway
		size = len(data)
	}
	if b.objects > 0 && (b.objects == BatchObjects || b.bytes+size > batchBytes) {
		b.Lines[len(b.Lines)-1].More = true
		b.Lines = append(b.Lines, &Update{})
		b.objects, b.bytes = 0, 0
	}
	b.objects++
	b.bytes += size
	return b.Lines[len(b.Lines)-1]
}
