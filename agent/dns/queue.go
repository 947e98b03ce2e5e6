package dns

import (
	"net/netip"
	"sync"
)

// queue runs the work of many clients, a few pieces at a time and one client
// after the other, so that the work of one delays each of the others by one
// piece at most. It keeps no goroutine while there is nothing to do.
type queue struct {
	places *shares // of work that waits

	mu      sync.Mutex
	free    int                     // slots: how many pieces may run now
	clients map[netip.Addr]*backlog // of those whose work waits
	turn    []*backlog              // the same, the next one first

	running sync.WaitGroup
}

// backlog is the waiting work of one client.
type backlog struct {
	client netip.Addr
	work   []piece
}

// piece is work that waits; placed, if it holds one of the places.
type piece struct {
	run    func(*slot)
	placed bool
}

func newQueue(slots, places int) *queue {
	return &queue{places: newShares(places), free: slots, clients: map[netip.Addr]*backlog{}}
}

// slot is the right of one piece of work to use the processor. Work that has
// to wait for the network gives it up before.
type slot struct {
	queue *queue
	given bool
}

func (s *slot) release() {
	if s != nil && !s.given {
		s.given = true
		s.queue.finish()
	}
}

// regain waits for the client's turn to use the processor again.
func (s *slot) regain(client netip.Addr) {
	if s == nil || !s.given {
		return
	}
	turn := make(chan struct{})
	s.queue.put(client, piece{run: func(other *slot) {
		other.given = true // from there to here
		close(turn)
	}})
	<-turn
	s.given = false
}

// add queues work of a client that has taken one of the places.
func (q *queue) add(client netip.Addr, work func(*slot)) {
	q.put(client, piece{work, true})
}

func (q *queue) put(client netip.Addr, work piece) {
	q.mu.Lock()
	defer q.mu.Unlock()
	b := q.clients[client]
	if b == nil {
		b = &backlog{client: client}
		q.clients[client] = b
		q.turn = append(q.turn, b)
	}
	b.work = append(b.work, work)
	q.start()
}

// start fills the free slots.
func (q *queue) start() {
	for q.free > 0 && len(q.turn) > 0 {
		b := q.turn[0]
		q.turn[0] = nil
		q.turn = q.turn[1:]
		work := b.work[0]
		b.work[0] = piece{}
		if b.work = b.work[1:]; len(b.work) > 0 {
			q.turn = append(q.turn, b)
		} else {
			delete(q.clients, b.client)
		}
		if work.placed {
			q.places.give(b.client)
		}
		q.free--
		q.running.Go(func() {
			s := &slot{queue: q}
			defer s.release()
			work.run(s)
		})
	}
}

func (q *queue) finish() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.free++
	q.start()
}
