package server

import (
	"net/http"

	"github.com/shoal-project/shoal/agent/gossip"
)

// gossipMembers shows how the node sees the others (shoal members --node), none
// without gossip.
func (s *Server) gossipMembers(w http.ResponseWriter, _ *http.Request) {
	list := []gossip.View{}
	if s.GossipView != nil {
		list = append(list, s.GossipView()...)
	}
	reply(w, list)
}
