package gossip

import "errors"

// Security is what an agent's configuration says of the gossip's keys.
type Security struct {
	// KeyFile holds the key that all members share (Keyring); "" for none.
	KeyFile string
	// Insecure has every member believed as it is.
	Insecure bool
	// Identity is the member's own certificate, and whose grants count.
	Identity func() (*Identity, Trust, error)
}

// Secure gives a member its keys. Without them it stays on this machine, unless
// the configuration says otherwise.
func (c *Config) Secure(s Security) error {
	var err error
	if s.KeyFile != "" {
		if c.Keys, err = LoadKeyring(s.KeyFile); err != nil {
			return err
		}
	}
	if s.Insecure {
		c.Log.Warn("the gossip believes every member (gossipInsecure), and routes no pods")
		return nil
	}
	missing := errors.New("no gossipKeyFile is configured")
	if c.Keys != nil {
		if c.Identity, c.Trust, missing = s.Identity(); missing == nil {
			return nil
		}
	}
	c.Log.Info("the gossip stays on this machine", "reason", missing)
	c.BindAddr, c.AdvertiseAddr, c.Join = "127.0.0.1", "127.0.0.1", nil
	return nil
}

// Identify reads a node's client certificate, its key and the authority whose
// grants count, all PEM.
func Identify(node string, cert, key, ca []byte) (*Identity, Trust, error) {
	if len(cert) == 0 {
		return nil, nil, errors.New("the kubeconfig has no client certificate of system:node:" + node)
	}
	id, err := LoadIdentity(cert, key)
	if err != nil {
		return nil, nil, err
	}
	trust, err := ParseTrust(ca)
	return id, trust, err
}
