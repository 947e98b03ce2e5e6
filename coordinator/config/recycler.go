package config

import (
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// Recycler is how volumes of the policy Recycle are emptied, in the words of
// upstream's controller manager. Times are in seconds.
type Recycler struct {
	// PVRecyclerPodTemplateFilepathHostpath and its fellow are files with the Pod that
	// empties such volumes; empty: upstream's.
	PVRecyclerPodTemplateFilepathHostpath string `json:"pvRecyclerPodTemplateFilepathHostpath,omitempty"`
	PVRecyclerPodTemplateFilepathNFS      string `json:"pvRecyclerPodTemplateFilepathNFS,omitempty"`
	// PVRecyclerMinimumTimeoutHostpath and its fellow are the least that a pod is given.
	PVRecyclerMinimumTimeoutHostpath int `json:"pvRecyclerMinimumTimeoutHostpath,omitempty"`
	PVRecyclerMinimumTimeoutNFS      int `json:"pvRecyclerMinimumTimeoutNFS,omitempty"`
	// PVRecyclerTimeoutIncrementHostpath and its fellow are what it is given for each
	// GiB of the volume, where that is more.
	PVRecyclerTimeoutIncrementHostpath int `json:"pvRecyclerTimeoutIncrementHostpath,omitempty"`
	PVRecyclerIncrementTimeoutNFS      int `json:"pvRecyclerIncrementTimeoutNFS,omitempty"`
}

func defaultRecycler() Recycler {
	return Recycler{
		PVRecyclerMinimumTimeoutHostpath:   60,
		PVRecyclerMinimumTimeoutNFS:        300,
		PVRecyclerTimeoutIncrementHostpath: 30,
		PVRecyclerIncrementTimeoutNFS:      30,
	}
}

func (r *Recycler) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&r.PVRecyclerPodTemplateFilepathHostpath, "pv-recycler-pod-template-filepath-hostpath",
		r.PVRecyclerPodTemplateFilepathHostpath, "file of the Pod that empties hostPath volumes of the policy Recycle (default: upstream's)")
	fs.StringVar(&r.PVRecyclerPodTemplateFilepathNFS, "pv-recycler-pod-template-filepath-nfs",
		r.PVRecyclerPodTemplateFilepathNFS, "file of the Pod that empties nfs volumes of the policy Recycle (default: upstream's)")
	fs.IntVar(&r.PVRecyclerMinimumTimeoutHostpath, "pv-recycler-minimum-timeout-hostpath",
		r.PVRecyclerMinimumTimeoutHostpath, "seconds that a pod has to empty a hostPath volume, at least")
	fs.IntVar(&r.PVRecyclerMinimumTimeoutNFS, "pv-recycler-minimum-timeout-nfs",
		r.PVRecyclerMinimumTimeoutNFS, "seconds that a pod has to empty an nfs volume, at least")
	fs.IntVar(&r.PVRecyclerTimeoutIncrementHostpath, "pv-recycler-timeout-increment-hostpath",
		r.PVRecyclerTimeoutIncrementHostpath, "seconds that a pod has for each GiB of a hostPath volume")
	fs.IntVar(&r.PVRecyclerIncrementTimeoutNFS, "pv-recycler-increment-timeout-nfs",
		r.PVRecyclerIncrementTimeoutNFS, "seconds that a pod has for each GiB of an nfs volume")
}

// validate tells what cannot be by bad(field, value, remedy).
func (r *Recycler) validate(bad func(field, value, remedy string)) {
	for field, path := range map[string]string{
		"pvRecyclerPodTemplateFilepathHostpath": r.PVRecyclerPodTemplateFilepathHostpath,
		"pvRecyclerPodTemplateFilepathNFS":      r.PVRecyclerPodTemplateFilepathNFS,
	} {
		if path != "" && !strings.HasPrefix(path, "/") {
			bad(field, path, "give an absolute path")
		}
	}
	const most = 1 << 31 // a pod's deadline has no more
	for field, seconds := range map[string]int{
		"pvRecyclerMinimumTimeoutHostpath": r.PVRecyclerMinimumTimeoutHostpath,
		"pvRecyclerMinimumTimeoutNFS":      r.PVRecyclerMinimumTimeoutNFS,
	} {
		if seconds < 1 || seconds >= most {
			bad(field, strconv.Itoa(seconds), "give a number of seconds above 0")
		}
	}
	for field, seconds := range map[string]int{
		"pvRecyclerTimeoutIncrementHostpath": r.PVRecyclerTimeoutIncrementHostpath,
		"pvRecyclerIncrementTimeoutNFS":      r.PVRecyclerIncrementTimeoutNFS,
	} {
		if seconds < 0 || seconds >= most {
			bad(field, strconv.Itoa(seconds), "give a number of seconds, or 0")
		}
	}
}
