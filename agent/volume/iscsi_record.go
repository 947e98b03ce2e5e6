package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Passwords are written into the records of open-iscsi, which only root can read. As
// arguments of iscsiadm every user of the node could see them in /proc.

// recordSize bounds a record, in bytes; real ones have some three thousand.
const recordSize = 64 << 10

// chapKeys are what the Secret of an iscsi volume has, after the prefix of the
// discovery's or the session's.
var chapKeys = []string{"username", "password", "username_in", "password_in"}

// readSecret reads the credentials, once. They are to be values of a record, and no
// lines of it.
func (l *login) readSecret(ctx context.Context) error {
	if !l.chap && !l.chapSearch || l.credentials != nil {
		return nil
	}
	namespace := l.volume.Pod.Namespace
	if l.secret.Namespace != "" {
		namespace = l.secret.Namespace
	}
	s, err := l.objects.Secret(ctx, namespace, l.secret.Name)
	if err != nil {
		return fmt.Errorf("failed to get the Secret %s/%s of iscsi.secretRef: %w", namespace, l.secret.Name, err)
	}
	read := map[string]string{}
	for _, prefix := range []string{"node.session.auth.", "discovery.sendtargets.auth."} {
		for _, key := range chapKeys {
			value := string(s.Data[prefix+key])
			if !oneValue(value) {
				return fmt.Errorf("the key %s of Secret %s/%s has characters that no credential of iSCSI has, "+
					"or more than 255: perhaps a line end", prefix+key, namespace, l.secret.Name)
			}
			if value != "" {
				read[prefix+key] = value
			}
		}
	}
	l.credentials = read
	return nil
}

// oneValue tells whether a text can be a value of a record.
func oneValue(text string) bool {
	return len(text) <= 255 && text == strings.TrimSpace(text) &&
		!strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// writeSecrets puts the credentials whose names begin so into a record.
func (l *login) writeSecrets(file, prefix string) error {
	values := map[string]string{prefix + "authmethod": "CHAP"}
	for name, value := range l.credentials {
		if strings.HasPrefix(name, prefix) {
			values[name] = value
		}
	}
	if values[prefix+"username"] == "" || values[prefix+"password"] == "" {
		return fmt.Errorf("the Secret %s of iscsi.secretRef lacks the keys %susername and %spassword",
			l.secret.Name, prefix, prefix)
	}
	return changeRecord(file, l.database(file), values)
}

// database is the directory of all records, of which file is one.
func (l *login) database(file string) string {
	for _, dir := range l.records {
		if strings.HasPrefix(file, dir+"/") {
			return dir
		}
	}
	return filepath.Dir(file)
}

// nodeFile is the record of the target at a portal.
func (l *login) nodeFile(portal string) (string, error) {
	for _, dir := range l.records {
		at := filepath.Join(dir, "nodes", l.target, fileOf(portal))
		if tag := l.told[portal]; tag != "" {
			if file := filepath.Join(at+tag, l.iface()); isFile(file) {
				return file, nil
			}
		}
		found, err := filepath.Glob(at + ",*/" + l.iface()) // a record before told the tag
		if err == nil && len(found) > 0 && isFile(found[0]) {
			return found[0], nil
		}
		if isFile(at) { // without a tag
			return at, nil
		}
	}
	return "", fmt.Errorf("iscsiadm made a record of the target that is not below %s: "+
		"without it the node has no place for the password that nobody can read", strings.Join(l.records, " or "))
}

// searchFile is the record of how a portal is asked for its targets.
func (f iscsiFinder) searchFile(portal string) string {
	path := ""
	for _, dir := range slices.Backward(f.records) {
		file := filepath.Join(dir, "send_targets", fileOf(portal), "st_config")
		if path == "" || isFile(file) {
			path = file
		}
	}
	return path
}

// fileOf names a portal as the records do: "ADDRESS,PORT".
func fileOf(portal string) string {
	a, err := netip.ParseAddrPort(portal)
	if err != nil {
		return portal // invalid sees to it
	}
	return fmt.Sprintf("%s,%d", a.Addr(), a.Port())
}

func isFile(path string) bool {
	st, err := os.Lstat(path)
	return err == nil && st.Mode().IsRegular()
}

// changeRecord sets values in a record, which changes at once. The file that takes its
// place is made where iscsiadm looks for no records.
func changeRecord(file, dir string, values map[string]string) (err error) {
	st, err := os.Stat(file)
	if err != nil {
		return err
	}
	if st.Size() > recordSize {
		return fmt.Errorf("%s is no record of open-iscsi: it has %d bytes", file, st.Size())
	}
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	next, err := os.CreateTemp(dir, ".shoal-") // for root alone
	if err != nil {
		return err
	}
	_, err = next.WriteString(setInRecord(string(old), values))
	if err = errors.Join(err, next.Close()); err == nil {
		err = os.Rename(next.Name(), file)
	}
	if err != nil {
		if gone := os.Remove(next.Name()); !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	return err
}

// setInRecord returns a record with these values and all others that it has.
func setInRecord(record string, values map[string]string) string {
	var b strings.Builder
	rest := maps.Clone(values)
	flush := func() {
		for _, name := range slices.Sorted(maps.Keys(rest)) {
			b.WriteString(name + " = " + rest[name] + "\n")
		}
		clear(rest)
	}
	for line := range strings.Lines(record) {
		line = strings.TrimSuffix(line, "\n")
		name, _, _ := strings.Cut(line, "=")
		if _, ours := values[strings.TrimSpace(name)]; ours {
			continue
		}
		if strings.TrimSpace(line) == "# END RECORD" {
			flush()
		}
		b.WriteString(line + "\n")
	}
	flush()
	return b.String()
}

// recordIn reads the values of a record.
func recordIn(text string) map[string]string {
	values := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(line, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if ok && strings.HasPrefix(name, "iface.") && oneValue(value) && oneValue(name) {
			values[name] = value
		}
	}
	return values
}
