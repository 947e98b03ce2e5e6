package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/encryption"
	"github.com/shoal-project/shoal/coordinator/members"
	"github.com/shoal-project/shoal/coordinator/pki"
	"github.com/shoal-project/shoal/coordinator/rotation"
)

// Names of the sets of keys that change by themselves' rotations.
const (
	secretsSet = "secrets"
	gossipSet  = "gossip"
)

// useTime bounds how long keys may take to be used.
const useTime = 15 * time.Second

// newKeys has this coordinator follow the rotations of the keys that all have alike.
func (s *parts) newKeys() (*rotation.Member, error) {
	dir := keys(s.cfg)
	m := &rotation.Member{Name: hostName() + "/" + s.external(), Notes: s.store.Notes("keys"), Dir: dir,
		Shown: s.auth.Shown, Log: s.log}
	if s.store.Embedded() {
		own, err := s.member()
		if err != nil {
			return nil, err
		}
		m.Name, m.Must = own.Name, s.otherMembers
	}
	m.Sets = []rotation.Set{
		{
			Name: pki.CAs.Name, Check: pki.CAs.Check,
			Read: reads(dir, pki.CAs.Files...), Use: s.useCA,
		},
		{
			Name: pki.ServiceAccounts.Name, Check: pki.ServiceAccounts.Check,
			Read: reads(dir, pki.ServiceAccounts.Files...), Use: s.useServiceAccountKeys,
		},
		{
			Name: gossipSet, Check: only(pki.GossipKeyFile, gossip.CheckKeys),
			Read: reads(dir, pki.GossipKeyFile), Use: func(f pki.Files) error {
				return dir.Replace(f, pki.GossipKeyFile) // the gossip looks at its file by itself
			},
		},
	}
	if file := encryptionFile(s.cfg); ownEncryption(s.cfg) {
		name := filepath.Base(string(file))
		m.Sets = append(m.Sets, rotation.Set{
			Name: secretsSet, Check: only(name, encryption.Check),
			Read: reads(dir, name), Use: s.useEncryption,
		})
	}
	return m, nil
}

// only checks the content of a set of one file.
func only(name string, check func([]byte) error) func(pki.Files) error {
	return func(f pki.Files) error {
		if len(f) != 1 || f[name] == nil {
			return fmt.Errorf("the set is of the one file %s", name)
		}
		return check(f[name])
	}
}

// ownEncryption: the file is among the keys, not one of the operator's, which a unit may
// not write.
func ownEncryption(cfg config.Config) bool { return cfg.EncryptionProviderConfig == "" }

func reads(dir pki.Dir, names ...string) func() (pki.Files, error) {
	return func() (pki.Files, error) { return dir.ReadFiles(names...) }
}

// otherMembers are the other coordinators of the embedded store. Witnesses have no keys.
func (s *parts) otherMembers() (names []string) {
	for _, m := range s.store.Members() {
		if !m.Self && m.Name != "" && !strings.HasPrefix(m.Name, members.WitnessPrefix) {
			names = append(names, m.Name)
		}
	}
	return names
}

func (s *parts) useServiceAccountKeys(f pki.Files) error {
	signer, accepted, err := f.ServiceAccountKeys()
	if err != nil {
		return err
	}
	if err := keys(s.cfg).Replace(f, pki.ServiceAccounts.Files...); err != nil {
		return err
	}
	if err := s.auth.SetServiceAccountKeys(signer, accepted...); err != nil {
		return err
	}
	s.leadAgain() // tokens of Secrets that the old key has signed are made anew once it is dropped
	return nil
}

// leadAgain has the controllers, where they run, begin again with the keys of now.
func (s *parts) leadAgain() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *parts) useEncryption(f pki.Files) error {
	file := encryptionFile(s.cfg)
	return useEncryption(file, f[filepath.Base(string(file))], s.store.ReloadEncryption)
}

// useEncryption writes other content into the file and has it used. What cannot be used
// does not stay there: a start would fail by it.
func useEncryption(file encryption.File, data []byte, reload func(context.Context) error) error {
	before, err := os.ReadFile(string(file))
	if err != nil {
		return fmt.Errorf("read encryption configuration: %w", err)
	}
	if err := file.Install(data); err != nil {
		return err
	}
	use := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), useTime)
		defer cancel()
		return reload(ctx)
	}
	if err = use(); err == nil {
		return nil
	}
	if back := file.Install(before); back != nil {
		return errors.Join(err, back)
	}
	return errors.Join(err, use())
}

// useCA has all of this process believe other CAs, and shows what the first has signed.
// Each part takes its own; done twice it changes nothing.
func (s *parts) useCA(f pki.Files) error {
	trusted, err := f.Trusted()
	if err != nil {
		return err
	}
	dir := keys(s.cfg)
	if err := dir.Replace(f, pki.CAs.Files...); err != nil {
		return err
	}
	pool := x509.NewCertPool()
	for _, cert := range trusted {
		pool.AddCert(cert)
	}
	s.auth.SetClientCAs(pool)
	if s.cfg.KubeletCertificateAuthority == "" {
		s.kubelets.SetAuthorities(pool)
	}
	ca, err := dir.CA()
	if err != nil {
		return err
	}
	if err := dir.Ensure(cluster(s.cfg, s.advertise), time.Now()); err != nil {
		return err
	}
	s.kubelets.Reconnect()
	if err := s.regrant(ca, trusted); err != nil {
		return fmt.Errorf("show the gossip a grant of the new CA: %w", err)
	}
	s.leadAgain()
	return s.publishCA(dir)
}

// publishCA tells aggregated API servers, once this one can be written to.
func (s *parts) publishCA(dir pki.Dir) error {
	select {
	case <-s.ready:
	default:
		return nil // the start does
	}
	system, err := s.system(dir)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), useTime)
	defer cancel()
	return system.PublishAuthentication(ctx, s.api.Client())
}
