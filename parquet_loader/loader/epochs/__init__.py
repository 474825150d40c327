"""The epochs of a loader: begins, ends and reads them ahead; saves states and continues from them."""
