package server

import (
	"io"
	"net/http"
)

// gossipKeys shows which keys the node's member of the gossip uses, none without one.
func (s *Server) gossipKeys(w http.ResponseWriter, _ *http.Request) {
	list := []string{}
	if s.GossipKeys != nil {
		list = append(list, s.GossipKeys.Prints()...)
	}
	reply(w, list)
}

// setGossipKeys takes a key file (shoal gossip rotate).
func (s *Server) setGossipKeys(w http.ResponseWriter, r *http.Request) {
	file, err := io.ReadAll(r.Body) // as long as maxBody
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if s.GossipKeys != nil {
		if err := s.GossipKeys.Replace(file); err != nil {
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
			return
		}
	}
	s.gossipKeys(w, r)
}
