package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Auths are logins, by what they are for: a registry, with an optional scheme, globs in
// the parts of its host and a prefix of the path (IMG-20).
type Auths map[string]Auth

// Auth is a login as Docker writes it.
type Auth struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
}

// Parse reads the contents of a Docker config.json.
func Parse(data []byte) (Auths, error) {
	var c struct {
		Auths Auths `json:"auths"`
	}
	err := json.Unmarshal(data, &c)
	return c.Auths, err
}

// ParseOld reads those of a .dockercfg.
func ParseOld(data []byte) (a Auths, err error) {
	err = json.Unmarshal(data, &a)
	return a, err
}

// For are the logins for an image, the more exact first.
func (a Auths) For(image string) (out []*criv1.AuthConfig) {
	for _, key := range slices.Backward(slices.Sorted(maps.Keys(a))) {
		if Matches(key, image) {
			l := a[key]
			out = append(out, &criv1.AuthConfig{Username: l.Username, Password: l.Password, Auth: l.Auth,
				IdentityToken: l.IdentityToken, ServerAddress: key})
		}
	}
	return out
}

// maxConfig bounds a node's configuration file, in bytes.
const maxConfig = 1 << 20

// readFile are the logins of a node's configuration file; none when it is not there.
func readFile(file string) (Auths, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err == nil && len(data) > maxConfig {
		err = fmt.Errorf("it is longer than %d bytes", maxConfig)
	}
	var a Auths
	if err == nil {
		a, err = Parse(data)
	}
	if err != nil {
		return nil, fmt.Errorf("read the node's registry logins in %s: %w", file, err)
	}
	return a, nil
}

// Matches tells whether a key of Auths is for an image. As upstream, a glob is for one part
// of the host, never for the port, and a path is one by its letters: team is of teams/app, too.
func Matches(key, image string) bool {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	host, path, _ := strings.Cut(key, "/")
	imageHost, imagePath := split(image)
	if host == "index.docker.io" || host == "registry-1.docker.io" {
		host = dockerHub
	}
	if host != imageHost {
		name, port, _ := strings.Cut(host, ":")
		imageName, imagePort, _ := strings.Cut(imageHost, ":")
		ok, err := filepath.Match(name, imageName)
		if err != nil || !ok || port != imagePort || strings.Count(name, ".") != strings.Count(imageName, ".") {
			return false
		}
	}
	path = strings.Trim(path, "/")
	if path == "" || path == "v1" || path == "v2" {
		return true
	}
	return strings.HasPrefix(imagePath, path)
}

const dockerHub = "docker.io"

// split is the registry of an image and the rest of its name.
func split(image string) (host, path string) {
	host, path, ok := strings.Cut(image, "/")
	if !ok || !strings.ContainsAny(host, ".:") && host != "localhost" {
		return dockerHub, image
	}
	return host, path
}
