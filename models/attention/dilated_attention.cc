// SPDX-License-Identifier: Apache-2.0
#include "models/attention/dilated_attention.h"

namespace droptest::models {

template class DilatedAttentionOf<HostHeads<float>>;
template class DilatedAttentionOf<HostHeads<double>>;

}  // namespace droptest::models
