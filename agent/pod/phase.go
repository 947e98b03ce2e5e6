package pod

// phase tells who wants a worker's pod: drawn in doc.go.
type phase int

const (
	// held: its record tells of it, and its containers do not run. It waits
	// for its source, or the word that none will be heard.
	held phase = iota
	// wanted: its source wants it, or it ran when the agent began.
	wanted
	// removed: its source does not have it any more.
	removed
	// found: no record tells of it, but the runtime or the records of its
	// volumes do. It waits for a source to claim it.
	found
	// abandoned: it was found, and no source claimed it.
	abandoned
	// gone: nothing is left of it, neither is its worker.
	gone
)

func (p phase) String() string {
	return [...]string{"held", "wanted", "removed", "found", "abandoned", "gone"}[p]
}

// change is what moves a worker from one phase to another.
type change int

const (
	claimed  change = iota // its source has it
	disowned               // its source does not have it
	letRun                 // it runs on, or again, although its source was not heard
	cleaned                // the last of it was removed
)

func (c change) String() string {
	return [...]string{"claimed", "disowned", "let-run", "cleaned"}[c]
}

// after is the phase that a change leads to.
func (p phase) after(c change) phase {
	switch {
	case p == gone || c == cleaned:
		return gone
	case c == claimed, c == letRun && p == held:
		return wanted
	case c == disowned && p.unclaimed():
		return abandoned
	case c == disowned:
		return removed
	}
	return p
}

// waits tells whether nothing may be done to the pod: what runs is left alone.
func (p phase) waits() bool { return p == held || p == found || p == gone }

// unwanted tells whether the pod must end and leave nothing.
func (p phase) unwanted() bool { return p == removed || p == abandoned }

// unclaimed tells whether no source ever had the pod: there is nobody to tell
// of it.
func (p phase) unclaimed() bool { return p == found || p == abandoned }

// turn is where a worker's goroutine is.
type turn int

const (
	idle    turn = iota // there is none
	looking             // it looks at the pod
	again               // it is to look once more
)
