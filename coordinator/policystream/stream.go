package policystream

import (
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"github.com/shoal-project/shoal/agent/policyfeed"
)

const (
	// queueMost is how many bytes wait for an agent that does not read. One that is
	// further behind is told all anew when it comes again.
	queueMost = 8 << 20
	// writeWait is how long an agent may take to read a part.
	writeWait = 30 * time.Second
	// A stream ends after a time, as a watch does: who has lost the right to listen, or
	// would be better served elsewhere, does not listen for ever.
	streamLeast, streamMost = 30 * time.Minute, time.Hour
)

// stream is one who listens.
type stream struct {
	whole  [][]byte // all there was, shared with others; comes before what is queued
	queue  [][]byte
	size   int // of the queue
	behind bool
	wake   chan struct{} // holds a token when there is something to take
}

// join begins with all there is.
func (h *Hub) join() *stream {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &stream{whole: h.lines(), wake: make(chan struct{}, 1)}
	s.wake <- struct{}{}
	h.streams[s] = true
	return s
}

func (h *Hub) leave(s *stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.streams, s)
}

// tell puts a line into all queues; h.mu is held.
func (h *Hub) tell(u *policyfeed.Update) {
	if len(h.streams) == 0 {
		return
	}
	line := h.encode(u)
	for s := range h.streams {
		s.add(line)
	}
}

// tellAll has all who listen begin anew; h.mu is held.
func (h *Hub) tellAll() {
	if len(h.streams) == 0 {
		return
	}
	lines := h.lines()
	for s := range h.streams {
		// What is not sent yet does not count any more.
		s.whole, s.queue, s.size = lines, nil, 0
		s.poke()
	}
}

func (s *stream) add(line []byte) {
	if s.size += len(line); s.size > queueMost {
		s.behind, s.whole, s.queue = true, nil, nil
	}
	if !s.behind {
		s.queue = append(s.queue, line)
	}
	s.poke()
}

func (s *stream) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take empties the queue; false when the agent is too far behind.
func (h *Hub) take(s *stream) (lines [][]byte, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	lines = slices.Concat(s.whole, s.queue)
	s.whole, s.queue, s.size = nil, nil, 0
	return lines, !s.behind
}

var nothingNew = []byte("{}\n")

// ServeHTTP tells one agent until it goes.
func (h *Hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		http.Error(w, "use GET", http.StatusMethodNotAllowed)
		return
	}
	select {
	case <-h.ready:
	case <-h.ended:
		return
	case <-r.Context().Done():
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	s := h.join()
	defer h.leave(s)
	beat := time.NewTicker(policyfeed.Beat)
	defer beat.Stop()
	end := time.NewTimer(streamLeast + rand.N(streamMost-streamLeast))
	defer end.Stop()
	out := writer{ResponseWriter: w, ResponseController: http.NewResponseController(w)}
	for {
		var lines [][]byte
		select {
		case <-r.Context().Done():
			return
		case <-h.ended:
			return
		case <-end.C:
			return
		case <-beat.C:
			lines = [][]byte{nothingNew}
		case <-s.wake:
			var ok bool
			if lines, ok = h.take(s); !ok {
				return
			}
		}
		if out.write(lines) != nil {
			return
		}
	}
}

type writer struct {
	http.ResponseWriter
	*http.ResponseController
}

func (w writer) write(lines [][]byte) error {
	for _, line := range lines {
		_ = w.SetWriteDeadline(time.Now().Add(writeWait)) // a server without is a test's
		if _, err := w.Write(line); err != nil {
			return err
		}
	}
	err := w.Flush()
	_ = w.SetWriteDeadline(time.Time{}) // one that passes ends an HTTP/2 stream that waits
	return err
}
