package gatewaystream

import (
	"math/rand/v2"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
	"github.com/shoal-project/shoal/coordinator/auth/identity"
	"github.com/shoal-project/shoal/coordinator/gateway"
)

const (
	// writeWait is how long an agent may take to read a part.
	writeWait = 30 * time.Second
	// A stream ends after a time, as a watch does.
	streamLeast, streamMost = 30 * time.Minute, time.Hour
)

var nothingNew = []byte("{}\n")

// ServeHTTP tells one agent until it goes: always what there is now, so that one that reads
// slowly misses what was meanwhile, and nothing waits for it.
func (h *Hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		http.Error(w, "use GET", http.StatusMethodNotAllowed)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	beat := time.NewTicker(gatewayfeed.Beat)
	defer beat.Stop()
	end := time.NewTimer(streamLeast + rand.N(streamMost-streamLeast))
	defer end.Stop()
	out := http.NewResponseController(w)
	if out.Flush() != nil { // that it is heard is known before there is anything to tell
		return
	}
	who, _ := request.UserFrom(r.Context())
	node, _ := identity.Node(who) // "": none, who hears nothing of any plan
	var last *gateway.Line        // that the node was told
	var leaving time.Time         // since when the node is to hear that it answers for less
	for {
		h.mu.Lock()
		told, changed := h.told, h.changed
		// A configuration has keys: only a node that serves is told. Another one, and one whose
		// Node is gone, hears no "none" either, which would end what it does.
		if h.plan != nil && !h.plan.Nodes[node] {
			told = nil
		}
		h.mu.Unlock()
		var held <-chan time.Time
		if told != nil {
			line := told.Line(node)
			switch wait := hold(&leaving, last != nil && told.Leaves(last, line)); {
			case last != nil && line.Sum == last.Sum:
			case wait > 0:
				held = time.After(wait)
			default:
				last, leaving = line, time.Time{}
				if !write(w, out, line.Parts...) {
					return
				}
			}
		}
		select {
		case <-r.Context().Done():
			return
		case <-h.ended:
			return
		case <-end.C:
			return
		case <-beat.C:
			if !write(w, out, nothingNew) {
				return
			}
		case <-changed:
		case <-held:
		}
	}
}

// leave is how long a node that is no longer one of a Gateway's goes on answering for it: until
// nobody is led to it any more.
const leave = 2 * time.Second

// hold says how long something that makes a node leave waits, since when it first was to be told.
func hold(since *time.Time, leaves bool) time.Duration {
	if !leaves {
		*since = time.Time{}
		return 0
	}
	if since.IsZero() {
		*since = time.Now()
	}
	return leave - time.Since(*since)
}

func write(w http.ResponseWriter, out *http.ResponseController, parts ...[]byte) bool {
	_ = out.SetWriteDeadline(time.Now().Add(writeWait)) // a server without is a test's
	var err error
	for i := 0; i < len(parts) && err == nil; i++ {
		_, err = w.Write(parts[i])
	}
	if err == nil {
		err = out.Flush()
	}
	_ = out.SetWriteDeadline(time.Time{}) // one that passes ends an HTTP/2 stream that waits
	return err == nil
}
