package checkpoint

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Credential is the name of the systemd credential (systemd.exec(5)) that holds
// the key: systemd-creds encrypts it by the machine's TPM where there is one,
// else by the host's key.
const Credential = "shoal-checkpoint-key"

// Chosen says where the key of a checkpoint is, and why there.
type Chosen struct{ Key, Why string }

// FindKeys returns the keys of a node's records: the systemd credential if the
// service manager passed one, else the file, made when it is missing. With both
// the credential seals, and the file's key still opens what it sealed.
//
// spare is where Remember has put the file's key; "" for nowhere. When the file is lost or
// damaged, another takes its place, and the records of what runs are opened with the spare.
func FindKeys(file, spare string) (*Keys, Chosen, error) {
	credential, err := readSecret(os.Getenv("CREDENTIALS_DIRECTORY"), Credential)
	if err != nil {
		return nil, Chosen{}, err
	}
	remembered := readSpare(spare)
	saved, err := readSecret(filepath.Dir(file), filepath.Base(file))
	damaged := ""
	if errors.Is(err, errNoKey) && remembered != nil {
		damaged, err = moveAside(file)
	}
	if err != nil {
		return nil, Chosen{}, err
	}
	if credential != nil {
		secrets := [][]byte{credential}
		if saved != nil {
			secrets = append(secrets, saved)
		}
		keys, err := NewKeys(secrets...)
		return keys, Chosen{Key: "systemd credential " + Credential, Why: "the service manager passed it"}, err
	}
	chosen := Chosen{Key: file, Why: "no systemd credential " + Credential + " was passed"}
	if saved == nil {
		chosen.Why += "; the file was made now"
		if damaged != "" {
			chosen.Why += ", what was there was no key and is " + damaged
		}
		if saved, err = makeSecret(file); err != nil {
			return nil, chosen, err
		}
	}
	secrets := [][]byte{saved}
	if remembered != nil && !bytes.Equal(remembered, saved) {
		secrets = append(secrets, remembered)
		chosen.Why += "; what another key has sealed is opened with the copy of it in " + spare
	}
	keys, err := NewKeys(secrets...)
	if err == nil {
		keys.fromFile = saved
	}
	return keys, chosen, err
}

// Remember puts the key of the file where the next agent looks for it, for which spare
// should be in memory and end with the machine. It comes when all records have been opened,
// and so are sealed with this key.
func (k *Keys) Remember(spare string) error {
	if k == nil || k.fromFile == nil || bytes.Equal(readSpare(spare), k.fromFile) {
		return nil
	}
	if info, err := os.Lstat(spare); err == nil && info.IsDir() {
		if _, err := moveAside(spare); err != nil {
			return fmt.Errorf("remember checkpoint key: %w", err)
		}
	}
	if err := writeSecret(spare, append(bytes.Clone(k.fromFile), '\n')); err != nil {
		return fmt.Errorf("remember checkpoint key: %w", err)
	}
	return nil
}

// readSpare returns nil for what is no key: there is the file yet.
func readSpare(spare string) []byte {
	if spare == "" {
		return nil
	}
	secret, err := readSecret(filepath.Dir(spare), filepath.Base(spare))
	if err != nil {
		return nil
	}
	return secret
}

// errNoKey is of a file that can be read and is no key.
var errNoKey = errors.New("put it back from a backup, or remove it to have another made")

// maxSecret is far above what a key has.
const maxSecret = 4 << 10

// readSecret returns nil when there is no such file, or no directory is named.
func readSecret(dir, name string) ([]byte, error) {
	if dir == "" {
		return nil, nil
	}
	path := filepath.Join(dir, name)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoint key: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("checkpoint key: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("checkpoint key %s: it is no file; %w", path, errNoKey)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil,
			fmt.Errorf("checkpoint key %s: others can read it (%04o); chmod 600 it, or remove it to have another made",
				path, info.Mode().Perm())
	}
	data, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err != nil {
		return nil, fmt.Errorf("checkpoint key: %w", err)
	}
	data = bytes.TrimSpace(data)
	if len(data) < minSecret || len(data) > maxSecret {
		return nil,
			fmt.Errorf("checkpoint key %s: %d to %d bytes are a key; %w", path, minSecret, maxSecret, errNoKey)
	}
	return data, nil
}

// makeSecret writes a new key. It is on the disk before a record is sealed.
func makeSecret(path string) ([]byte, error) {
	raw := make([]byte, minSecret)
	if _, err := rand.Read(raw); err != nil {
		return nil, fmt.Errorf("make checkpoint key: %w", err)
	}
	secret := []byte(base64.StdEncoding.EncodeToString(raw))
	if err := writeSecret(path, append(secret, '\n')); err != nil {
		return nil, fmt.Errorf("make checkpoint key: %w (give another path with checkpointKeyFile)", err)
	}
	return secret, nil
}

func writeSecret(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
