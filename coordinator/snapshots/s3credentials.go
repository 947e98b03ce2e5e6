package snapshots

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

type secretKey struct{ key, secret, token string }

// maxCredentials bounds the file.
const maxCredentials = 16 << 10

// readCredentials reads a file of the form of ~/.aws/credentials with one profile. The
// AWS command's own reader would run programs that such a file names.
func readCredentials(path string) (k secretKey, err error) {
	f, err := os.Open(path)
	if err != nil {
		return k, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return k, err
	}
	if !info.Mode().IsRegular() {
		return k, fmt.Errorf("%s is no file", path)
	}
	if m := info.Mode().Perm(); m&0o037 != 0 {
		return k, fmt.Errorf("%s has mode %04o: others may read or change it; chown root:shoal-coordinator and chmod 0640, or 0600 for who runs the coordinator",
			path, m)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxCredentials))
	if err != nil {
		return k, err
	}
	if k, err = parseCredentials(data); err != nil {
		return k, fmt.Errorf("%s: %w", path, err)
	}
	return k, nil
}

func parseCredentials(data []byte) (k secretKey, err error) {
	fields := map[string]*string{
		"aws_access_key_id": &k.key, "aws_secret_access_key": &k.secret, "aws_session_token": &k.token,
	}
	profiles := 0
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if strings.HasPrefix(line, "[") {
			if profiles++; profiles > 1 {
				return k, errors.New("it has several profiles: keep the one that is meant")
			}
			continue
		}
		if line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";") {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		field := fields[strings.TrimSpace(name)]
		if !ok || field == nil { // the line may be a secret
			return k, fmt.Errorf("line %d is not aws_access_key_id, aws_secret_access_key or aws_session_token, with = and a value",
				n)
		}
		*field = strings.TrimSpace(value)
	}
	if err := lines.Err(); err != nil {
		return k, err
	}
	if k.key == "" || k.secret == "" {
		return k, errors.New("it needs a line aws_access_key_id = … and a line aws_secret_access_key = …")
	}
	return k, nil
}
