package gossip

import "encoding/base64"

// Annotations are what a member's Node shows the API: the certificate that its
// grant is wanted for; nil of a member that proves nothing.
func (g *Group) Annotations() map[string]string {
	cert := g.Certificate()
	if cert == nil {
		return nil
	}
	return map[string]string{CertificateAnnotation: base64.StdEncoding.EncodeToString(cert)}
}

// GrantIn reads the grant among a Node's annotations; nil for none.
func GrantIn(annotations map[string]string) []byte {
	raw, err := base64.StdEncoding.DecodeString(annotations[GrantAnnotation])
	if err != nil {
		return nil
	}
	return raw
}

// Heed takes from this member's Node what the gossip says: its grant and zone.
func (g *Group) Heed(annotations map[string]string, zone string) {
	if raw := GrantIn(annotations); len(raw) > 0 {
		if err := g.SetGrant(raw); err != nil {
			g.log.Debug("the Node's gossip grant is not for now", "err", err)
		}
	}
	if err := g.UpdateMeta(func(m *Meta) { m.Zone = zone }); err != nil {
		g.log.Warn("other nodes are not told of the zone", "err", err)
	}
}

// SetLeaving tells the other members that this one goes, or stays after all.
func (g *Group) SetLeaving(leaving bool) {
	if err := g.UpdateMeta(func(m *Meta) { m.Leaving = leaving }); err != nil {
		g.log.Warn("other nodes are not told that this one goes", "err", err)
	}
}
