package apiserver

import (
	"context"
	"time"

	genericapiserver "k8s.io/apiserver/pkg/server"
)

// Step must be done before the API is ready. Health checks know it by its name, as
// "poststarthook/NAME"; what upstream does too has upstream's name.
type Step struct {
	Name string
	Run  func(ctx context.Context) error
}

// stepPause is between two tries of a step.
const stepPause = time.Second

// OnStart runs steps one after the other once the server serves; the server is
// ready only after all have returned without error. What fails is tried again
// until then. ctx of a step ends with the server. Steps whose APIs are off are left out.
func (s *Server) OnStart(steps ...Step) error {
	before := make(chan struct{})
	close(before)
	for _, step := range steps {
		if !s.enabled.step(step.Name) {
			continue
		}
		first, done := before, make(chan struct{})
		before = done
		err := s.aggregator.GenericAPIServer.AddPostStartHook(step.Name,
			func(hook genericapiserver.PostStartHookContext) error {
				select {
				case <-first:
				case <-hook.Done():
					return nil
				}
				if s.insist(hook.Context, step) {
					close(done)
				}
				return nil
			})
		if err != nil {
			return err
		}
	}
	return nil
}

// insist runs a step until it succeeds; false when ctx ended before.
func (s *Server) insist(ctx context.Context, step Step) bool {
	for {
		err := step.Run(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		s.cfg.Log.Warn("start step failed, trying again", "step", step.Name, "err", err)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(stepPause):
		}
	}
}
