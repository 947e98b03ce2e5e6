package main

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/goreleaser/nfpm/v2/files"
)

// tree lists the files below root. What is in /etc is the administrator's once it is
// installed: an upgrade keeps what was changed there.
func tree(root, format string, made time.Time) (files.Contents, error) {
	var list files.Contents
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s: only files are packed, this is %s", path, info.Mode())
		}
		at := strings.TrimPrefix(path, filepath.Clean(root))
		kind := files.TypeFile
		if strings.HasPrefix(at, "/etc/") {
			kind = files.TypeConfigNoReplace
		}
		list = append(list, &files.Content{
			Source: path, Destination: place(at, format), Type: kind,
			FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: info.Mode().Perm(), MTime: made},
		})
		return nil
	})
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("-root %s: there are no files", root)
	}
	return list, err
}

// place is where a file belongs: zsh looks elsewhere on Fedora than on Debian.
func place(path, format string) string {
	if format == "rpm" {
		return strings.Replace(path, "/zsh/vendor-completions/", "/zsh/site-functions/", 1)
	}
	return path
}
