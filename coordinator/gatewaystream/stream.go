package gatewaystream

import (
	"bytes"
	"math/rand/v2"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
	"github.com/shoal-project/shoal/coordinator/auth/identity"
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
	var told []byte
	for {
		h.mu.Lock()
		line, changed := h.line, h.changed
		// A configuration has keys: only a node that serves is told. Another one, and one whose
		// Node is gone, hears no "none" either, which would end what it does.
		if h.plan != nil && !h.plan.Nodes[node] {
			line = nil
		}
		h.mu.Unlock()
		if line != nil && !bytes.Equal(line, told) {
			told = line
			if !write(w, out, line) {
				return
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
		}
	}
}

func write(w http.ResponseWriter, out *http.ResponseController, line []byte) bool {
	_ = out.SetWriteDeadline(time.Now().Add(writeWait)) // a server without is a test's
	_, err := w.Write(line)
	if err == nil {
		err = out.Flush()
	}
	_ = out.SetWriteDeadline(time.Time{}) // one that passes ends an HTTP/2 stream that waits
	return err == nil
}
