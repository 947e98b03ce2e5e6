package record

import "time"

// Image is who may use an image that the agent pulled, or was about to pull
// when it ended.
type Image struct {
	// Ref is the runtime's ID of the image; of a pull that has not ended, the
	// name that was asked for.
	Ref     string    `json:"ref"`
	Pulling bool      `json:"pulling,omitempty"`
	Updated time.Time `json:"updated"`
	// Salt is the key of the hashes below.
	Salt []byte `json:"salt,omitempty"`
	// Names is by the image's name without tag and digest, as it was asked for.
	Names map[string]*ImageAccess `json:"names,omitempty"`
	// Strict is set when there were too many names to keep: one that is not
	// among them may have been pulled too.
	Strict bool `json:"strict,omitempty"`
}

// ImageAccess tells with what an image was pulled under one name.
type ImageAccess struct {
	// Everyone is set when no credentials were needed.
	Everyone bool              `json:"everyone,omitempty"`
	Secrets  []ImagePullSecret `json:"secrets,omitempty"`
}

// ImagePullSecret is a Secret whose credentials gave access, and their hash.
type ImagePullSecret struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Hash      []byte `json:"hash"`
}
