// Package audit makes what records requests (ACC-15): the policy that says which,
// the log with its rotation, and the webhook.
package audit
