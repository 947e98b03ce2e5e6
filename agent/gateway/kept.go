package gateway

import (
	"errors"
	"maps"
	"slices"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
)

// Kept is where the configuration outlives a reboot: a record for each port, by the port's
// key, with the certificates that it needs, so that each can be read without the others.
type Kept interface {
	All() (map[string]*gatewayfeed.Config, error)
	Put(key string, c *gatewayfeed.Config) error
	Delete(key string) error
}

// keep keeps what a coordinator has told. Before the proxy has it: a proxy that an agent
// finds at its start never has something newer than what is kept.
func (m *Manager) keep() {
	if m.cfg.Kept == nil {
		return
	}
	var errs []error
	now := map[string]bool{}
	for i := range m.config.Ports {
		port := &m.config.Ports[i]
		key, part := port.Key(), m.config.Only(func(p *gatewayfeed.Port) bool { return p == port })
		if len(part.Certificates) > 0 && !m.cfg.KeepKeys {
			continue
		}
		// One that cannot be written leaves none: what was told before may not be true any more.
		if err := m.cfg.Kept.Put(key, part); err != nil {
			errs = append(errs, err)
			continue
		}
		now[key] = true
	}
	for key := range m.kept {
		if !now[key] {
			errs = append(errs, m.cfg.Kept.Delete(key))
		}
	}
	m.kept = now
	err := errors.Join(errs...)
	if err != nil && !m.unkept {
		m.log.Warn("Gateways and Ingresses may not be answered after a reboot until a coordinator is in reach: "+
			"their configuration cannot be kept", "err", err)
	}
	m.unkept = err != nil
}

// restore takes what an agent before has kept. It counts until a coordinator says something,
// or the Services say that there is no Gateway any more.
func (m *Manager) restore() {
	if m.cfg.Kept == nil {
		return
	}
	all, err := m.cfg.Kept.All()
	if err != nil {
		m.log.Warn("what is known of Gateways and Ingresses cannot be read; a coordinator will tell it", "err", err)
		return
	}
	config := &gatewayfeed.Config{}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		part := all[key]
		m.kept[key] = true
		secret := len(part.Certificates) > 0 && !m.cfg.KeepKeys
		if err := part.Check(); secret || err != nil || len(part.Ports) != 1 || part.Ports[0].Key() != key {
			delete(m.kept, key)
			if err := m.cfg.Kept.Delete(key); err != nil {
				m.log.Warn("a record of a Gateway's port cannot be removed", "port", key, "err", err)
			}
			continue
		}
		config.Add(part)
	}
	if len(config.Ports) > 0 {
		m.config = config
	}
}
